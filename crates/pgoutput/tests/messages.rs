//! Decoding against bytes written by hand from the documentation, and against everything else.

use bytes::Bytes;
use event::Lsn;
use pgoutput::{
    Column, DecodeError, Message, OldTuple, Relation, RelationCache, Tuple, Value, decode, encode,
};
use proptest::prelude::*;

fn text(text: &'static str) -> Value {
    Value::Text(Bytes::from_static(text.as_bytes()))
}

/// Each kind of message, with its bytes as the documentation lays them out.
fn examples() -> Vec<(&'static [u8], Message)> {
    vec![
        (
            b"B\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\0\0\0\0\x07\0\0\x02\x9A",
            Message::Begin { final_lsn: Lsn::new(0x16_B374_D848), commit_time: 7, xid: 666 },
        ),
        (
            b"C\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x40\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
            Message::Commit {
                flags: 0,
                commit_lsn: Lsn::new(0x10),
                end_lsn: Lsn::new(0x40),
                commit_time: -1,
            },
        ),
        (
            b"O\0\0\0\0\0\0\0\x05other\0",
            Message::Origin { lsn: Lsn::new(5), name: "other".into() },
        ),
        (
            b"R\0\0\x40\0public\0outbox\0d\0\x02\x01id\0\0\0\x0B\x86\xFF\xFF\xFF\xFF\0n\0\0\0\x04\x13\0\0\0\x0E",
            Message::Relation(Relation {
                id: 16_384,
                namespace: "public".into(),
                name: "outbox".into(),
                replica_identity: b'd',
                columns: vec![
                    Column { flags: 1, name: "id".into(), type_oid: 2_950, type_modifier: -1 },
                    Column { flags: 0, name: "n".into(), type_oid: 1_043, type_modifier: 14 },
                ],
            }),
        ),
        (
            b"Y\0\0\x40\x01\0mood\0",
            Message::Type { oid: 16_385, namespace: "pg_catalog".into(), name: "mood".into() },
        ),
        (
            b"I\0\0\x40\0N\0\x04t\0\0\0\x02abnt\0\0\0\0b\0\0\0\x01\xFF",
            Message::Insert {
                relation_id: 16_384,
                new: Tuple {
                    values: vec![
                        text("ab"),
                        Value::Null,
                        text(""),
                        Value::Binary(Bytes::from_static(b"\xFF")),
                    ],
                },
            },
        ),
        (
            b"U\0\0\x40\0N\0\x01u",
            Message::Update {
                relation_id: 16_384,
                old: None,
                new: Tuple { values: vec![Value::Unchanged] },
            },
        ),
        (
            b"U\0\0\x40\0K\0\x01t\0\0\0\x01aN\0\x01n",
            Message::Update {
                relation_id: 16_384,
                old: Some(OldTuple::Key(Tuple { values: vec![text("a")] })),
                new: Tuple { values: vec![Value::Null] },
            },
        ),
        (
            b"D\0\0\x40\0O\0\x01n",
            Message::Delete {
                relation_id: 16_384,
                old: OldTuple::Full(Tuple { values: vec![Value::Null] }),
            },
        ),
        (
            b"T\0\0\0\x02\x03\0\0\x40\0\0\0\x40\x01",
            Message::Truncate {
                relation_ids: vec![16_384, 16_385],
                cascade: true,
                restart_identity: true,
            },
        ),
        (
            b"M\x01\0\0\0\0\0\0\0\x09p\0\0\0\0\x02\x00y",
            Message::Message {
                transactional: true,
                lsn: Lsn::new(9),
                prefix: "p".into(),
                content: Bytes::from_static(b"\0y"),
            },
        ),
    ]
}

#[test]
fn every_kind_is_read_as_documented() {
    for (bytes, message) in examples() {
        assert_eq!(decode(Bytes::from_static(bytes)), Ok(message.clone()));
        if !matches!(message, Message::Type { .. }) {
            assert_eq!(encode(&message), bytes, "{message:?}");
        }
    }
}

#[test]
fn every_truncation_and_every_addition_is_an_error() {
    for (bytes, _) in examples() {
        for length in 0..bytes.len() {
            assert!(decode(Bytes::from_static(&bytes[..length])).is_err(), "{length} of {bytes:?}");
        }
        let longer = [bytes, b"\0"].concat();
        let tag = bytes[0];
        assert_eq!(decode(longer.into()), Err(DecodeError::Trailing { tag, bytes: 1 }));
    }
}

#[test]
fn errors_name_message_place_and_field() {
    let error = |bytes: &'static [u8]| decode(Bytes::from_static(bytes)).unwrap_err().to_string();
    assert_eq!(error(b""), "an empty replication message");
    assert_eq!(error(b"Z"), "unknown replication message 'Z'");
    assert_eq!(error(b"I\0\0"), "replication message 'I' ends at byte 1, within relation id");
    assert_eq!(error(b"I\0\0\0\x01K"), "replication message 'I', byte 6: invalid new tuple marker");
    assert_eq!(
        error(b"I\0\0\0\x01N\0\x01t\xFF\xFF\xFF\xFFabc"),
        "replication message 'I' ends at byte 13, within text value"
    );
    assert_eq!(
        error(b"O\0\0\0\0\0\0\0\0\xFF\0"),
        "replication message 'O', byte 9: invalid origin name"
    );
}

#[test]
fn a_relation_record_in_mid_transaction_replaces_the_older_one() {
    let relation = |name: &str| Relation {
        id: 1,
        namespace: "public".into(),
        name: name.into(),
        replica_identity: b'd',
        columns: Vec::new(),
    };
    let mut cache = RelationCache::default();
    let first = cache.apply(relation("a"));
    cache.apply(relation("b"));
    assert_eq!(first.name, "a", "who holds on to it keeps it");
    assert_eq!(cache.get(1).map(|relation| relation.name.clone()), Some("b".into()));
    assert_eq!(cache.get(2), None);
    cache.clear();
    assert_eq!(cache.get(1), None);
}

fn name() -> impl Strategy<Value = String> {
    "[^\0]{1,12}"
}

fn tuple() -> impl Strategy<Value = Tuple> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    let value = prop_oneof![
        Just(Value::Null),
        Just(Value::Unchanged),
        bytes().prop_map(Value::Text),
        bytes().prop_map(Value::Binary),
    ];
    prop::collection::vec(value, 0..8).prop_map(|values| Tuple { values })
}

fn old() -> impl Strategy<Value = OldTuple> {
    prop_oneof![tuple().prop_map(OldTuple::Key), tuple().prop_map(OldTuple::Full)]
}

fn lsn() -> impl Strategy<Value = Lsn> {
    any::<u64>().prop_map(Lsn::new)
}

fn relation() -> impl Strategy<Value = Relation> {
    let column = (any::<u8>(), name(), any::<u32>(), any::<i32>()).prop_map(
        |(flags, name, type_oid, type_modifier)| Column { flags, name, type_oid, type_modifier },
    );
    let columns = prop::collection::vec(column, 0..8);
    (any::<u32>(), name(), name(), any::<u8>(), columns).prop_map(
        |(id, namespace, name, replica_identity, columns)| Relation {
            id,
            namespace,
            name,
            replica_identity,
            columns,
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (lsn(), any::<i64>(), any::<u32>()).prop_map(|(final_lsn, commit_time, xid)| {
            Message::Begin { final_lsn, commit_time, xid }
        }),
        (any::<u8>(), lsn(), lsn(), any::<i64>()).prop_map(
            |(flags, commit_lsn, end_lsn, commit_time)| Message::Commit {
                flags,
                commit_lsn,
                end_lsn,
                commit_time
            }
        ),
        (lsn(), name()).prop_map(|(lsn, name)| Message::Origin { lsn, name }),
        relation().prop_map(Message::Relation),
        (any::<u32>(), name(), name()).prop_map(|(oid, namespace, name)| Message::Type {
            oid,
            namespace,
            name
        }),
        (any::<u32>(), tuple()).prop_map(|(relation_id, new)| Message::Insert { relation_id, new }),
        (any::<u32>(), prop::option::of(old()), tuple())
            .prop_map(|(relation_id, old, new)| Message::Update { relation_id, old, new }),
        (any::<u32>(), old()).prop_map(|(relation_id, old)| Message::Delete { relation_id, old }),
        (prop::collection::vec(any::<u32>(), 0..6), any::<bool>(), any::<bool>()).prop_map(
            |(relation_ids, cascade, restart_identity)| Message::Truncate {
                relation_ids,
                cascade,
                restart_identity
            }
        ),
        (any::<bool>(), lsn(), name(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(
            |(transactional, lsn, prefix, content)| Message::Message {
                transactional,
                lsn,
                prefix,
                content: content.into()
            }
        ),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(message in message()) {
        prop_assert_eq!(decode(encode(&message)), Ok(message));
    }

    #[test]
    fn a_message_cut_anywhere_is_an_error(message in message(), cut in any::<prop::sample::Index>()) {
        let bytes = encode(&message);
        prop_assert!(decode(bytes.slice(..cut.index(bytes.len()))).is_err());
    }

    #[test]
    fn no_bytes_make_it_panic(tag in prop::sample::select(b"BCORYIUDTM".to_vec()), rest in prop::collection::vec(any::<u8>(), 0..64)) {
        let bytes = [vec![tag], rest].concat();
        let _ = decode(bytes.into());
    }
}
