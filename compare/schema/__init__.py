"""Define the data that processes send to each other, and the files that commands save."""
