"""Many scopes written at once from several processes while brokers are restarted: what must hold afterwards."""
