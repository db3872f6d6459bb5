//! What a server does with bytes from anywhere: header, then body as request and as reply. Shared by the corpus
//! test and the fuzz target (`fuzz/`).

use super::messages;
use nacre_types::Codec as _;
use nacre_wire::mdt::Batch;
use nacre_wire::{HEADER_BYTES, Header, Opcode};

/// Any function serves as checksum here: the transport brings the real one.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |s, &b| (s ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

/// Takes in a frame. Nothing may panic, loop or allocate beyond a small multiple of the input.
pub(crate) fn take_in(data: &[u8]) {
    let Some((head, body)) = data.split_first_chunk::<HEADER_BYTES>() else { return };
    let as_sent = Header::decode(head, sum);
    // Behind the checksum, where a fuzzer would hardly ever get.
    let mut signed = *head;
    signed[..4].copy_from_slice(&0x6e63_7265u32.to_le_bytes());
    signed[4..6].copy_from_slice(&1u16.to_le_bytes());
    let check = sum(&signed[..HEADER_BYTES - 4]);
    signed[HEADER_BYTES - 4..].copy_from_slice(&check.to_le_bytes());
    for decoded in [as_sent, Header::decode(&signed, sum)] {
        let Ok((header, lengths)) = decoded else { continue };
        let body = &body[..body.len().min(lengths.body_bytes as usize)];
        let Some(opcode) = Opcode::from_number(header.opcode) else { continue };
        for message in messages::all().iter().filter(|m| m.opcode == Some(opcode)) {
            settle(message.decode, body);
        }
        settle(|body| messages::decode_reply(opcode, body), body);
        // A callback is a message without a reply.
        let name = format!("{opcode:?}");
        for message in messages::all().iter().filter(|m| m.opcode.is_none() && m.name == name) {
            settle(message.decode, body);
        }
        if let (Opcode::Batch, Ok(batch)) = (opcode, Batch::from_slice(body)) {
            for operation in &batch.operations {
                let opcode = Opcode::from_number(operation.opcode);
                for message in messages::all().iter().filter(|m| m.opcode.is_some() && m.opcode == opcode) {
                    settle(message.decode, &operation.body);
                }
            }
        }
    }
}

/// What was accepted once is accepted again, as the same value.
pub(crate) fn settle(decode: impl Fn(&[u8]) -> Option<Vec<u8>>, bytes: &[u8]) {
    if let Some(once) = decode(bytes) {
        assert!(once.len() <= bytes.len(), "a decoder invents nothing");
        assert_eq!(decode(&once).as_deref(), Some(once.as_slice()));
    }
}
