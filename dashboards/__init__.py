"""What people see: explanations, reports and charts, made of rows; nothing here reads a bus or a file."""
