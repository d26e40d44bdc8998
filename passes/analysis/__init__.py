"""Facts about a program that several passes need; nothing here changes a program."""
