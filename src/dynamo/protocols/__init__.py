"""What crosses a wire: messages as msgspec structs, and the tree of errors that travels with them."""
