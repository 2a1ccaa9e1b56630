"""Kafka topics: one transaction of a producer sends the rows of a batch, its number and the flows' state.

The number and the state go to a compacted topic of one partition, which belongs to the sink. A reader with
`isolation.level=read_committed` sees the rows of a batch if and only if the state has the batch.
"""
