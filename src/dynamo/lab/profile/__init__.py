"""What an engine's steps take: measured by live requests or recorded, and fitted for simulations."""
