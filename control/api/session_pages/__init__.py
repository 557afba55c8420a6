"""The pages below `/sessions/`, for browsers: the code is asked for, then the page is the shell."""
