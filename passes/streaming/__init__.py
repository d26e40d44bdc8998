"""How weights that rest elsewhere come to their devices: what stays for a while, and what comes through slots."""
