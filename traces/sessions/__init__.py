"""Sessions of turns with waits between them, as agents and chats make them: schema, files, laws, figures."""
