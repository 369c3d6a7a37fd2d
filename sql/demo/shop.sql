-- The demo's shop: registrations that are paid and confirmed.
CREATE TABLE IF NOT EXISTS public.registration (
    id      text   PRIMARY KEY,
    state   text   NOT NULL DEFAULT 'PENDING_PAYMENT',
    version bigint NOT NULL DEFAULT 1
);
