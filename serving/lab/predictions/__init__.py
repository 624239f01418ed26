"""What if?: a change is simulated before it is made, and compared with what happened when it was."""
