"""A server of pictures: one pipeline that stays loaded, behind routes that clients know already."""
