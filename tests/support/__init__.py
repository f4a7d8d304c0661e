"""What several test modules share. Test modules do not import each other."""
