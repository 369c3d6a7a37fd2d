//! What the tests share: a shop, a relay process, reading the stream back.
