//! Text from messages never becomes a control token, in every kind of tokenizer. Also tests tokens' written forms.

use super::*;
use super::{json_tests, spm_tests, tests};
use crate::base::Status;
use crate::text::chat::Rendered;
use proptest::prelude::*;
use serde_json::json;

/// Parts that alternate between the template and a message.
fn chat(parts: &[&str]) -> Rendered {
    let mut chat = Rendered::default();
    for (at, part) in parts.iter().enumerate() {
        let start = chat.text.len();
        chat.text.push_str(part);
        if at % 2 == 1 && !part.is_empty() {
            chat.untrusted.push(start..chat.text.len());
        }
    }
    chat
}

/// Each kind: a tokenizer, and the written forms of a control token, of a token that is none, and of the first
/// token.
fn kinds() -> Vec<(Tokenizer, &'static str, &'static str)> {
    let mut strips = json_tests::file();
    strips["added_tokens"][3]["rstrip"] = json!(true);
    let mut normalized = json_tests::file();
    normalized["added_tokens"][2]["normalized"] = json!(true);
    normalized["normalizer"] = json!({"type": "NFC"});
    vec![
        (tests::Toy::new().load(), "<|eot_id|>", "<tag>"),
        (spm_tests::Toy::usual().load(), "</s>", "<tag>"),
        (json_tests::load(&json_tests::file()).unwrap(), "</s>", "<tag>"),
        (json_tests::load(&strips).unwrap(), "<|im_end|>", "<tag>"),
        (json_tests::load(&normalized).unwrap(), "</s>", "<tag>"),
    ]
}

fn controls(t: &Tokenizer, ids: &[u32]) -> usize {
    ids.iter().filter(|&&id| t.token_bytes(id).unwrap().is_empty()).count() - t.first.len()
}

#[test]
fn a_message_cannot_write_a_control_token() {
    for (t, control, tag) in kinds() {
        let (head, tail) = control.split_at(3);
        // Parts, and the number of control tokens in them.
        for (parts, count) in [
            (vec![control, "ab", control], 2),
            (vec!["a", control, control], 1),
            // One half is a message's, and the other half is the template's or another message's.
            (vec!["", head, tail], 0),
            (vec![head, tail], 0),
            (vec!["", head, "", tail, control], 1),
            (vec![control, head, control, tail], 2),
            // A message's text that overlaps the end or the beginning of the template's token.
            (vec!["", head, control, control, "b"], 1),
            (vec![head, control, control], 1),
            (vec!["", control], 0),
        ] {
            let chat = chat(&parts);
            let ids = t.encode_chat(&chat).unwrap();
            assert_eq!(controls(&t, &ids), count, "{parts:?}");
            let written: Vec<u8> =
                ids[t.first.len()..].iter().flat_map(|&id| t.token_piece(id).unwrap()).copied().collect();
            let written = String::from_utf8(written).unwrap().replace([' ', '▁'], "");
            assert_eq!(written, chat.text, "{parts:?}");
        }
        // User-defined tokens are found in every text.
        let ids = t.encode_chat(&chat(&["a", tag, "b"])).unwrap();
        assert_eq!(ids, t.encode(&format!("a{tag}b"), true, true).unwrap());
    }
}

#[test]
fn an_end_of_turn_cannot_be_swallowed_by_a_token_of_text() {
    let mut toy = tests::Toy::new();
    toy.tokens.push("x<".into());
    toy.types.push(4);
    let t = toy.load();
    assert_eq!(controls(&t, &t.encode_chat(&chat(&["", "x", "<|eot_id|>"])).unwrap()), 1);
    let mut file = json_tests::file();
    let mut token = file["added_tokens"][4].clone();
    token["id"] = json!(json_tests::IM_END + 2);
    token["content"] = json!("x<");
    file["added_tokens"].as_array_mut().unwrap().push(token);
    let t = json_tests::load(&file).unwrap();
    assert_eq!(controls(&t, &t.encode_chat(&chat(&["", "x", "</s>"])).unwrap()), 1);
}

#[test]
fn a_first_token_that_a_message_wrote_is_none() {
    let t = spm_tests::Toy::usual().load();
    assert_eq!(t.encode_chat(&chat(&["<s>", "a"])).unwrap(), t.encode("<s>a", true, true).unwrap());
    let ids = t.encode_chat(&chat(&["", "<s>a"])).unwrap();
    assert_eq!((ids[0], controls(&t, &ids)), (1, 0));
}

#[test]
fn ranges_out_of_place_are_refused() {
    let t = Tokenizer::bytes().unwrap();
    let pairs: [&[(usize, usize)]; 5] =
        [&[(0, 9)], &[(1, 2)], &[(2, 3), (0, 1)], &[(0, 3), (2, 4)], &[(3, 2)]];
    for pairs in pairs {
        let untrusted = pairs.iter().map(|&(from, to)| from..to).collect();
        let chat = Rendered { text: "aéb".into(), untrusted };
        assert_eq!(t.encode_chat(&chat).unwrap_err().status, Status::InvalidArgument, "{:?}", chat.untrusted);
    }
    assert_eq!(t.encode_chat(&chat(&["a", "b"])).unwrap(), t.encode("ab", true, true).unwrap());
}

#[test]
fn every_token_has_its_bytes() {
    let (t, control, tag) = kinds().remove(0);
    let one = |t: &Tokenizer, text: &str| *t.encode(text, false, true).unwrap().last().unwrap();
    assert_eq!(t.token_piece(one(&t, control)), Some(control.as_bytes()));
    assert_eq!(t.token_bytes(one(&t, control)), Some(&b""[..]));
    assert_eq!(t.token_piece(one(&t, tag)), Some(tag.as_bytes()));
    assert_eq!(t.token_piece(2 + 0xe2), Some(&[0xe2][..]));
    for (t, control, tag) in kinds().drain(1..3) {
        assert_eq!(t.token_piece(one(&t, control)), Some(control.as_bytes()));
        assert_eq!(t.token_piece(one(&t, tag)), Some(tag.as_bytes()));
        assert_eq!(t.token_piece(t.encode("ab", false, false).unwrap()[0]), Some(&b" a"[..]));
        assert_eq!(t.token_piece(3 + 0xe2), Some(&[0xe2][..]));
        assert_eq!(t.token_piece(t.vocab_size() as u32), None);
    }
    let bytes = Tokenizer::bytes().unwrap();
    assert_eq!((bytes.token_piece(7), bytes.token_piece(256)), (Some(&[7][..]), Some(&b""[..])));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn innocent_conversations_are_cut_as_their_text(
        parts in prop::collection::vec(prop::sample::select(vec![
            "", " ", "a", "ab ", "  b\n", "x<", "é", "12", "aaaa", "<tag>", "hell", "\u{2581}", "CONTROL",
        ]), 0..9)
    ) {
        for (t, control, _) in kinds() {
            let parts: Vec<&str> = parts.iter().enumerate()
                .map(|(at, part)| match *part { "CONTROL" if at % 2 == 0 => control, "CONTROL" => "c", part => part })
                .collect();
            let chat = chat(&parts);
            let own = parts.iter().step_by(2).filter(|part| **part == control).count();
            let ids = t.encode_chat(&chat).unwrap();
            prop_assert_eq!(&ids, &t.encode(&chat.text, true, true).unwrap());
            prop_assert_eq!(controls(&t, &ids), own);
        }
    }
}
