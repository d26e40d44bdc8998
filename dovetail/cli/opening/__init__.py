"""What commands work on: a pipeline that is loaded or planned, the parts of one, or plan files."""
