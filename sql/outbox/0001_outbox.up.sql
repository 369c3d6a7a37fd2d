-- The reference outbox table. A service inserts into it in the transaction of its business change.
CREATE TABLE IF NOT EXISTS public.outbox (
    event_id          uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregate_id      text        NOT NULL,
    aggregate_version bigint      NOT NULL,
    event_type        text        NOT NULL,
    payload           jsonb       NOT NULL,
    occurred_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    publish_state     text        NOT NULL DEFAULT 'PENDING',
    UNIQUE (aggregate_id, aggregate_version)
);

COMMENT ON TABLE public.outbox IS 'Events to publish. The relay reads inserts from the log and changes nothing here.';
COMMENT ON COLUMN public.outbox.event_id IS 'Names the event for ever.';
COMMENT ON COLUMN public.outbox.aggregate_id IS 'The business key; events of one key are published in commit order.';
COMMENT ON COLUMN public.outbox.aggregate_version IS 'The version of the aggregate that the event made.';
COMMENT ON COLUMN public.outbox.publish_state IS 'For the service''s own use; the relay neither reads nor writes it.';
