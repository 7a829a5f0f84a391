"""The definitions of the custom resources, generated from the models.

`python -m liftbridge_operator.model.crds [FOLDER]` writes them; without a folder, to `deploy/crds`.
"""
