"""What both worlds share below their subject: settings, model shapes, random streams, arrays."""
