-- What the relay keeps on record, and what people have decided about it. The relay writes one row,
-- at most every two seconds while events flow.
CREATE SCHEMA outbox_relay;

CREATE TABLE outbox_relay.record (
    relay               text PRIMARY KEY,
    -- Who holds the slot makes the record its own; an earlier holder's writes are refused.
    generation          bigint NOT NULL,
    system_identifier   numeric,
    timeline            bigint,
    stream_created      text,
    -- The last event that the stream acknowledged: commit LSN and row, and its stream sequence.
    acked_position      text,
    acked_sequence      bigint,
    -- The last event that the slot may have let go of, and the largest LSN it may have been told.
    released_position   text,
    confirmed_lsn       pg_lsn,
    -- The part of the stream that a person has declared to be of another history.
    past_stream_created text,
    past_sequence       bigint,
    past_shared_below   pg_lsn,
    -- Lost events with a commit LSN below are being published again from the outbox tables.
    mending_below       pg_lsn,
    stored_at           timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

CREATE TABLE outbox_relay.act (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    relay    text NOT NULL,
    act      text NOT NULL,
    actor    text NOT NULL,
    login    text NOT NULL DEFAULT session_user,
    reason   text NOT NULL,
    detail   jsonb NOT NULL
);
