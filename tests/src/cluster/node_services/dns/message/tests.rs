use super::*;

/// `A? Etcd-0.main.svc`, recursion desired, as a resolver sends it, followed by an EDNS record.
fn question_datagram() -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 1];
    bytes.extend(b"\x06Etcd-0\x04main\x03svc\x00\x00\x01\x00\x01");
    bytes.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    bytes
}

fn decode_question() -> Question {
    Question::decode(&question_datagram()).unwrap()
}

#[test]
fn question_is_decoded_despite_trailing_records() {
    let question = decode_question();
    assert_eq!(
        (question.id, question.record_type),
        (0x1234, RecordType::Address)
    );
    assert_eq!(question.name, "etcd-0.main.svc");
}

#[test]
fn truncated_or_damaged_datagram_does_not_panic() {
    let complete = question_datagram();
    for length in 0..complete.len() {
        let _ = Question::decode(&complete[..length]);
    }
    for at in 0..complete.len() {
        for value in [0, 0x3F, 0x40, 0xC0, 0xFF] {
            let mut damaged = complete.clone();
            damaged[at] = value;
            let _ = Question::decode(&damaged);
        }
    }
}

#[test]
fn reply_is_not_decoded_as_a_question() {
    let reply = DnsAnswer::Records(Vec::new()).encode(&decode_question());
    assert_eq!(Question::decode(&reply), None);
}

#[test]
fn reply_contains_the_question_and_the_address() {
    let address = Ipv4Addr::new(198, 18, 16, 7);
    let reply = DnsAnswer::Records(vec![RecordData::Address(address)]).encode(&decode_question());
    assert_eq!(reply[..2], [0x12, 0x34]);
    assert_eq!(reply[2..8], [0x85, 0x80, 0, 1, 0, 1]);
    assert!(reply.ends_with(&[0xC0, 0x0C, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 198, 18, 16, 7]));
}

#[test]
fn srv_record_contains_port_and_target() {
    let data = RecordData::Service {
        port: 2380,
        target: "a.svc".to_owned(),
    };
    let expected = [&[0, 0, 0, 100, 0x09, 0x4C], b"\x01a\x03svc\x00".as_slice()].concat();
    assert_eq!(data.encode(), expected);
}

#[test]
fn unknown_name_and_empty_answer_have_different_codes() {
    let code = |answer: DnsAnswer| answer.encode(&decode_question())[3] & 0x0F;
    assert_eq!(code(DnsAnswer::NxDomain), 3);
    assert_eq!(code(DnsAnswer::Records(Vec::new())), 0);
}

#[test]
fn oversized_reply_is_truncated_and_marked() {
    let many = (0..100).map(|last| RecordData::Address(Ipv4Addr::new(198, 18, 16, last)));
    let reply = DnsAnswer::Records(many.collect()).encode(&decode_question());
    assert!(reply.len() <= MAX_REPLY_BYTES);
    assert_eq!(reply[2] & 0x02, 0x02);
    let count = usize::from(reply[7]);
    assert_eq!(
        reply.len(),
        HEADER_BYTES + decode_question().raw.len() + count * 16
    );
}
