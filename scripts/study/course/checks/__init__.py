"""The checks of the exercises, one module per lesson. Solve an exercise before you read its check."""
