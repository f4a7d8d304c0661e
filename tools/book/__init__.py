"""What the book needs beside its pages: reference pages from code, and a check of the prose."""
