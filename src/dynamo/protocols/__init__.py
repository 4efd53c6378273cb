"""Messages that cross a wire, as msgspec structs, and the errors that cross it with them."""
