-- The reference write: the business change and its event, in one statement of one transaction.
-- $1 is the registration, $2 the version that the caller saw. No row comes back when another
-- caller was first: then nothing was changed and no event written.
WITH confirmed AS (
    UPDATE public.registration
       SET state = 'CONFIRMED', version = version + 1
     WHERE id = $1 AND state = 'PENDING_PAYMENT' AND version = $2
 RETURNING id, version
)
INSERT INTO public.outbox (aggregate_id, aggregate_version, event_type, payload)
SELECT id, version, 'RegistrationConfirmed', jsonb_build_object('id', id, 'version', version)
  FROM confirmed
RETURNING event_id, aggregate_version
