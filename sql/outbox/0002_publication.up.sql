-- What the relay reads: inserts on the outbox, and nothing else. Before the slot, never after it.
CREATE PUBLICATION outbox_relay FOR TABLE public.outbox
    WITH (publish = 'insert', publish_via_partition_root = true);
