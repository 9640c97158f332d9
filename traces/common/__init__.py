"""What both worlds share below their subject: settings, random streams, arrays."""
