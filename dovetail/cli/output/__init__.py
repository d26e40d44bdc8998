"""What commands print, show and write."""
