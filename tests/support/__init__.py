"""What tests share: real servers, scripted peers, models and request bodies."""
