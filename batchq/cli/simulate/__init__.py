"""The parts of `batchq simulate`: what is given, which runs are asked for, and what comes out."""
