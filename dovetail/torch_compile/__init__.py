"""The backend ``dovetail`` of torch.compile: ``backend.py`` for Dynamo, ``lifted.py`` for the weights of its graphs."""
