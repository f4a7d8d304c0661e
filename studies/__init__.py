"""What is made with the simulator and shipped with it: a figure for each example, and studies of whole fleets."""
