"""`batchq simulate`: its inputs, its options and its reports."""
