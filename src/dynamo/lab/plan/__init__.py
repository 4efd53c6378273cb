"""How many workers a traffic needs: `dynamo plan`."""
