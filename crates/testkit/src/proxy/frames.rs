use bytes::{Bytes, BytesMut};

/// What a frame of the NATS protocol is to a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A message for a stream, from a client.
    Publish,
    /// JetStream's acknowledgement of one, from the server.
    Ack,
    /// Anything else.
    Other,
}

/// Takes the next whole frame of the NATS protocol off the front of what has arrived; `None` until
/// all of it is there. A line, and for those that carry a message its bytes, whose number is the
/// line's last word (https://docs.nats.io/reference/reference-protocols/nats-protocol).
pub(super) fn next(arrived: &mut BytesMut) -> Option<(Frame, Bytes)> {
    let line_end = arrived.windows(2).position(|pair| pair == b"\r\n")?;
    let line = String::from_utf8_lossy(&arrived[..line_end]).into_owned();
    let mut words = line.split_ascii_whitespace();
    let verb = words.next().unwrap_or_default().to_ascii_uppercase();
    let subject = words.next().unwrap_or_default();
    let header_end = line_end + 2;
    if !matches!(verb.as_str(), "PUB" | "HPUB" | "MSG" | "HMSG") {
        return Some((Frame::Other, arrived.split_to(header_end).freeze()));
    }
    let length: usize = words.next_back()?.parse().ok()?;
    let end = header_end + length + 2;
    if arrived.len() < end {
        return None;
    }
    let internal = subject.starts_with('$') || subject.starts_with("_INBOX");
    let frame = if verb.ends_with("PUB") && !internal {
        Frame::Publish
    } else if verb == "MSG" && arrived[header_end..end].starts_with(b"{\"stream\":") {
        Frame::Ack
    } else {
        Frame::Other
    };
    Some((frame, arrived.split_to(end).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_cut_wherever_the_bytes_are() {
        let stream = b"PING\r\nHPUB s.1 _INBOX.a 4 6\r\nHH\r\nxy\r\nPUB $JS.API.INFO r 0\r\n\r\n\
            MSG _INBOX.a 1 22\r\n{\"stream\":\"S\",\"seq\":1}\r\nMSG s.1 1 2\r\nab\r\n";
        let expected = [Frame::Other, Frame::Publish, Frame::Other, Frame::Ack, Frame::Other];
        for split in 0..stream.len() {
            let mut arrived = BytesMut::from(&stream[..split]);
            let mut found = Vec::new();
            let mut passed = Vec::new();
            for rest in [&[][..], &stream[split..]] {
                arrived.extend_from_slice(rest);
                while let Some((frame, bytes)) = next(&mut arrived) {
                    found.push(frame);
                    passed.extend_from_slice(&bytes);
                }
            }
            assert_eq!(found, expected, "split at {split}");
            assert_eq!(passed, stream, "split at {split}");
        }
    }
}
