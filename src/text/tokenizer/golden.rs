//! Compares token ids with those of the Python packages on 10,000 texts (tools/golden/make_tokenizers.py makes
//! them by the same recipe).

use super::*;
use crate::base::Bytes;
use crate::formats::gguf::writer::{Meta, Writer, metadata_only};
use serde_json::{Value, json};
use unicode_normalization_alignments::UnicodeNormalization;

fn read(path: &str) -> Value {
    let root = env!("CARGO_MANIFEST_DIR");
    let path = std::path::Path::new(root).join(path);
    serde_json::from_slice(&std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
        .unwrap()
}

fn strings(v: &Value) -> Vec<String> {
    v.as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_owned()).collect()
}

fn numbers<T: TryFrom<i64, Error: std::fmt::Debug>>(v: &Value) -> Vec<T> {
    v.as_array().unwrap().iter().map(|n| n.as_i64().unwrap().try_into().unwrap()).collect()
}

/// CRC-32 as in zlib, continued from `crc`.
fn crc32(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!crc, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        (crate::rng::draw(&mut self.0) >> 33) as usize % n
    }
}

struct Golden {
    texts: Vec<String>,
    block: usize,
}

impl Golden {
    fn new() -> Self {
        let parts = read("tests/golden/tokenizers/parts.json");
        let list = |key: &str| strings(&parts[key]);
        let (words, specials, code, spaces) = (list("words"), list("specials"), list("code"), list("spaces"));
        let chars: Vec<String> = parts["chars"].as_str().unwrap().chars().map(String::from).collect();
        let mut draw = Draw(5);
        let text = |draw: &mut Draw| {
            let mut out: Vec<u8> = Vec::new();
            for _ in 0..1 + draw.below(14) {
                let kind = draw.below(40);
                let mut pick = |list: &[String]| out.extend(list[draw.below(list.len())].as_bytes());
                match kind {
                    0..22 => pick(&words),
                    22..25 => (0..1 + draw.below(8)).for_each(|_| out.push(32 + draw.below(95) as u8)),
                    25..30 => pick(&chars),
                    30..32 => (0..1 + draw.below(40)).for_each(|_| out.push(b' ')),
                    32..34 => (0..1 + draw.below(12)).for_each(|_| out.push(b'0' + draw.below(10) as u8)),
                    34..37 => pick(&specials),
                    37 => (0..1 + draw.below(4)).for_each(|_| out.push(draw.below(256) as u8)),
                    _ => pick(&code),
                }
                out.extend(spaces[draw.below(spaces.len())].as_bytes());
            }
            // Bytes that are not UTF-8 become U+FFFD, one for each maximal part, as a caller would repair them.
            String::from_utf8_lossy(&out).into_owned()
        };
        let count = parts["texts"].as_u64().unwrap();
        let texts: Vec<String> = (0..count).map(|_| text(&mut draw)).collect();
        let crc = texts.iter().fold(0, |crc, text| crc32(crc32(crc, text.as_bytes()), &[0xff]));
        assert_eq!(parts["crc"], crc, "the recipe makes other texts than Python's");
        assert!(texts.len() >= 10_000);
        Self { texts, block: parts["block"].as_u64().unwrap() as usize }
    }

    /// Appends the blocks whose ids differ from `want` to `differences`. Also checks that texts decode to
    /// `back`'s result, and that a stream of tokens agrees with decoding.
    fn check(
        &self,
        t: &Tokenizer,
        parse_special: bool,
        want: &Value,
        name: &str,
        differences: &mut Vec<String>,
        back: impl Fn(&str) -> Option<String>,
    ) {
        let want: Vec<u32> = numbers(want);
        assert_eq!(want.len(), self.texts.len().div_ceil(self.block));
        for (i, (texts, want)) in self.texts.chunks(self.block).zip(want).enumerate() {
            let mut crc = 0;
            for text in texts {
                let ids = t.encode(text, false, parse_special).unwrap();
                assert!(ids.len() >= t.fewest_tokens(text));
                crc = ids.iter().chain(&[u32::MAX]).fold(crc, |crc, id| crc32(crc, &id.to_le_bytes()));
                let decoded = streamed(t, &ids);
                assert_eq!(t.decode(&ids).unwrap(), decoded, "{name}");
                if let Some(back) = back(text).filter(|_| !parse_special) {
                    assert_eq!(decoded, back, "{name}");
                }
            }
            if crc != want {
                differences
                    .push(format!("{name}, special tokens {parse_special}: texts {} and on", i * self.block));
            }
        }
    }
}

/// The text of `ids` as it would be streamed, without the space before a text.
fn streamed(t: &Tokenizer, ids: &[u32]) -> String {
    let (mut text, mut utf8) = (String::new(), Utf8Stream::default());
    ids.iter().for_each(|&id| utf8.push(t.token_bytes(id).unwrap(), &mut text));
    utf8.finish(&mut text);
    text.strip_prefix(' ').filter(|_| t.space_prefix).map(str::to_owned).unwrap_or(text)
}

fn from_gguf(w: &Writer) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::from_bytes(w.bytes(), "golden").unwrap(), &|_| {}).unwrap().unwrap()
}

/// The case's `tokenizer.json` with its vocabulary filled in; merges as pairs or, in the old form, as lines.
fn json_bytes(case: &Value, tokens: &[String], lines: bool) -> Vec<u8> {
    let mut file = case["json"].clone();
    let vocab = tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id)));
    file["model"]["vocab"] = Value::Object(vocab.collect());
    let pair = |line: &Value| json!(line.as_str().unwrap().split(' ').collect::<Vec<_>>());
    let merges = case["merges"].as_array().unwrap();
    file["model"]["merges"] = if lines { json!(merges) } else { merges.iter().map(pair).collect() };
    serde_json::to_vec(&file).unwrap()
}

fn from_json(case: &Value, tokens: &[String], lines: bool) -> Tokenizer {
    let bytes = json_bytes(case, tokens, lines);
    let files = JsonFiles { tokenizer: &bytes, config: None, generation: None };
    Tokenizer::from_json(&files, "tokenizer.json", &|_| {}).unwrap()
}

fn each_case(file: &str, expected: usize, check: impl Fn(usize, &Value, &str, &mut Vec<String>)) {
    let golden = read(file);
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), expected);
    let mut differences = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        check(i, case, case["name"].as_str().unwrap(), &mut differences);
    }
    assert!(differences.is_empty(), "{} blocks differ:\n{}", differences.len(), differences.join("\n"));
}

fn byte_level_tokens(case: &Value) -> Vec<String> {
    let map = bytes::ByteMap::new();
    let mut tokens: Vec<String> = (0..=255).map(|b| map.char(b).to_string()).collect();
    tokens.sort();
    for merge in strings(&case["merges"]) {
        let made = merge.replace(' ', "");
        if !tokens.contains(&made) {
            tokens.push(made);
        }
    }
    tokens.extend(strings(&case["unmerged"]));
    tokens
}

fn byte_level(through_json: bool) {
    let golden = Golden::new();
    each_case("tests/golden/tokenizers/byte_level.json", 16, |i, case, name, differences| {
        let tokens = byte_level_tokens(case);
        let (control, user) = (strings(&case["control"]), strings(&case["user_defined"]));
        let bos = tokens.len() as u32;
        let t = if through_json {
            from_json(case, &tokens, i % 2 == 0)
        } else {
            let mut types = vec![1; tokens.len()];
            types.resize(types.len() + control.len(), 3);
            types.resize(types.len() + user.len(), 4);
            from_gguf(
                &Writer::new()
                    .meta("tokenizer.ggml.model", "gpt2")
                    .meta("tokenizer.ggml.pre", name)
                    .meta("tokenizer.ggml.tokens", Meta::Strs([tokens, control, user].concat()))
                    .meta("tokenizer.ggml.token_type", Meta::I32s(types))
                    .meta("tokenizer.ggml.bos_token_id", Meta::U32(bos))
                    .meta("tokenizer.ggml.merges", Meta::Strs(strings(&case["merges"]))),
            )
        };
        for (text, ids) in golden.texts.iter().zip(case["shown"].as_array().unwrap()) {
            assert_eq!(t.encode(text, false, false).unwrap(), numbers::<u32>(ids), "{name} {text:?}");
        }
        let first = t.encode("", true, false).unwrap();
        assert_eq!(first, if case["adds_bos"] == true { vec![bos] } else { vec![] }, "{name}");
        let nfc = case["nfc"] == true;
        let back =
            |text: &str| Some(if nfc { text.nfc().map(|(c, _)| c).collect() } else { text.to_owned() });
        golden.check(&t, false, &case["plain"], name, differences, back);
        golden.check(&t, true, &case["special"], name, differences, back);
    });
}

#[test]
fn byte_level_ids_are_those_of_the_python_package() {
    byte_level(false);
}

#[test]
fn byte_level_ids_through_tokenizer_json() {
    byte_level(true);
}

#[test]
fn score_based_ids_are_those_of_the_python_packages() {
    let golden = Golden::new();
    each_case("tests/golden/tokenizers/score_based.json", 6, |i, case, name, differences| {
        let pieces = strings(&case["pieces"]);
        let scores = case["scores"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap() as f32);
        let is = |flag: &str| case[flag] == true;
        // Squeezing and unknown characters lose text; Hugging Face's "first" adds no second space.
        let back = |text: &str| {
            let spaced = text.replace('\u{2581}', " ");
            let lossy =
                is("squeeze") || name == "spm-unknown" || name == "spm-first" && spaced.starts_with(' ');
            Some(spaced).filter(|_| !lossy)
        };
        if name != "spm-first" {
            let w = Writer::new()
                .meta("tokenizer.ggml.model", "llama")
                .meta("tokenizer.ggml.tokens", Meta::Strs(pieces.clone()))
                .meta("tokenizer.ggml.scores", Meta::F32s(scores.collect()))
                .meta("tokenizer.ggml.token_type", Meta::I32s(numbers(&case["types"])))
                .meta("tokenizer.ggml.add_space_prefix", Meta::Bool(is("prefix")))
                .meta("tokenizer.ggml.remove_extra_whitespaces", Meta::Bool(is("squeeze")));
            let t = from_gguf(&w);
            assert_eq!(
                (t.bos(), t.end_tokens(), t.encode("", true, false).unwrap()),
                (Some(1), &[2][..], vec![1])
            );
            golden.check(&t, false, &case["sentencepiece"], name, differences, back);
            if !is("squeeze") {
                golden.check(&t, true, &case["special"], name, differences, back);
            }
        }
        if !is("squeeze") {
            let t = from_json(case, &pieces, i % 2 == 0);
            assert_eq!((t.bos(), t.encode("", true, false).unwrap()), (Some(1), vec![1]));
            golden.check(&t, false, &case["plain"], &format!("{name} (json)"), differences, back);
            golden.check(&t, true, &case["special"], &format!("{name} (json)"), differences, back);
        }
    });
}

/// A `tokenizer.json`, written as GGUF metadata as by `bn-convert`, cuts texts as before.
fn exported(
    case: &Value,
    tokens: &[String],
    texts: &[String],
    rule: Option<&str>,
    differences: &mut Vec<String>,
) {
    let name = case["name"].as_str().unwrap();
    let bytes = json_bytes(case, tokens, false);
    let files = JsonFiles { tokenizer: &bytes, config: None, generation: None };
    let original = Tokenizer::from_json(&files, name, &|_| {}).unwrap();
    let pairs = match tokenizer_pairs(&files, original.vocab_size() + 3, name, &|_| {}) {
        Ok(pairs) => pairs,
        Err(error) => return differences.push(error.to_string()),
    };
    let gguf = Gguf::from_bytes(Bytes::new(metadata_only(&pairs)), name).unwrap();
    let named = gguf.find::<&str>("tokenizer.ggml.pre").unwrap();
    // GLM-4's cuts are Llama 3's, whose files begin with a BOS unless they say otherwise, as this one does.
    let rule = rule.map(|rule| if rule == "glm4" { "llama-bpe" } else { rule });
    let same_rule =
        |a: &str, b: &str| std::ptr::eq(split::Rule::named(a).unwrap(), split::Rule::named(b).unwrap());
    assert!(rule.is_none_or(|rule| same_rule(rule, named.unwrap())), "{name} became {named:?}");
    let copy = Tokenizer::from_gguf(&gguf, &|_| {}).unwrap().unwrap();
    assert_eq!(copy.vocab_size(), original.vocab_size() + 3);
    for text in texts {
        assert_eq!(
            copy.encode(text, true, true).unwrap(),
            original.encode(text, true, true).unwrap(),
            "{name} {text:?}"
        );
    }
}

#[test]
fn exported_tokenizers_cut_as_before_or_are_refused() {
    let texts = &Golden::new().texts[..300];
    // Rules whose passes no name in GGUF spells the same way.
    let nameless = ["falcon", "deepseek-llm", "deepseek-coder", "deepseek-v3"];
    each_case("tests/golden/tokenizers/byte_level.json", 16, |_, case, name, differences| {
        let mut refused = Vec::new();
        exported(case, &byte_level_tokens(case), texts, Some(name), &mut refused);
        if refused.is_empty() == nameless.contains(&name) {
            differences.push(format!("{name}: {refused:?}"));
        }
    });
    // Differences: one space before a text that begins with one, and the cuts around unknown characters.
    let other = ["spm-first", "spm-unknown"];
    each_case("tests/golden/tokenizers/score_based.json", 6, |_, case, name, differences| {
        // SentencePiece's squeezing of spaces has no tokenizer.json.
        if case["squeeze"] == true {
            return;
        }
        let mut refused = Vec::new();
        exported(case, &strings(&case["pieces"]), texts, None, &mut refused);
        if refused.is_empty() == other.contains(&name) {
            differences.push(format!("{name}: {refused:?}"));
        }
    });
}

/// Patterns that do not belong to a known model are searched for in counted steps. These patterns show that the
/// search finds the same matches, and that 2 MiB of any language, or a run of letters or of blanks without a
/// break, takes few enough steps.
#[test]
fn patterns_find_the_same_in_counted_steps() {
    let texts = Golden::new().texts;
    let mut long = texts.concat();
    while long.len() < 2 << 20 {
        long = long.repeat(2);
    }
    let end = (0..=2 << 20).rev().find(|&at| long.is_char_boundary(at)).unwrap();
    long.truncate(end);
    let runs = ["ต", "字", "a", "A", " ", "\n ", "7", "é!"].map(|part| part.repeat((256 << 10) / part.len()));
    let newer = [
        r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))|\s+(?!\S)|\s+|[^\s\p{N}]+",
    ];
    for pattern in split::patterns().chain(newer) {
        let engine = fancy_regex::Regex::new(pattern).unwrap();
        let counted = matcher::Matcher::new(pattern).unwrap();
        let matches = |text: &str| -> Vec<(usize, usize)> {
            let found = counted.cut(text).unwrap_or_else(|e| panic!("{pattern}: {e}"));
            found.into_iter().filter(|(_, found)| *found).map(|(range, _)| range).collect()
        };
        matches(&long);
        let part: String = long.chars().take(100_000).collect();
        for text in texts.iter().step_by(10).chain([&part]) {
            let found =
                engine.find_iter(text).map(|found| found.unwrap()).map(|found| (found.start(), found.end()));
            assert!(found.eq(matches(text)), "{pattern}: {:.100}", text);
        }
        runs.iter()
            .filter(|run| !run.starts_with('7') || pattern != newer[1])
            .for_each(|run| drop(matches(run)));
    }
}

/// The embedded model's vocabulary is the one that its training used.
#[test]
fn the_demo_model_has_its_training_vocabulary() {
    let trained = &read("tools/train_demo/tokenizer.json")["model"];
    let gguf = Gguf::open(concat!(env!("CARGO_MANIFEST_DIR"), "/models/bn-demo.gguf")).unwrap();
    let tokens: Vec<&str> = gguf.get("tokenizer.ggml.tokens").unwrap();
    let vocab = trained["vocab"].as_object().unwrap();
    assert_eq!(tokens.len(), vocab.len());
    for (id, token) in tokens.iter().enumerate() {
        assert_eq!(vocab[*token], id);
    }
    let merges: Vec<&str> = gguf.get("tokenizer.ggml.merges").unwrap();
    let trained_merges = trained["merges"].as_array().unwrap().iter().map(|m| match m {
        Value::String(line) => line.clone(),
        pair => strings(pair).join(" "),
    });
    assert!(merges.iter().map(|m| m.to_string()).eq(trained_merges));
    let t = Tokenizer::from_gguf(&gguf, &|line| panic!("nothing is to be guessed: {line}")).unwrap().unwrap();
    let text = "Once upon a time, 17+25=42. Tom? é\n";
    let ids = t.encode(text, true, false).unwrap();
    assert_eq!((ids[0], t.decode(&ids).unwrap().as_str()), (t.bos().unwrap(), text));
    // Sums need each digit to be a token.
    assert_eq!(t.encode("17+25=42", false, false).unwrap().len(), 8);
}
