//! POST /v1/systemone: typed questions about a state, answered without writing, in TypeSafe's format.
use crate::api::write;
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::models::Held;
use crate::request::engine::Running;
use crate::run::{Api, Call, Generation, Totals};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Maximum bytes of a state that is repeated for each question, over all questions.
const MOST_REPEATED: usize = 16 << 20;
/// Maximum number of questions.
const MOST_QUESTIONS: usize = bn::MAX_QUESTIONS;
/// Maximum number of levels of a score.
const MOST_LEVELS: usize = 10;
/// How a question ends, by its kind. Its options are the answers that this asks for.
const ASKED: [&str; 3] = [
    "Answer with the name of one option and nothing else.",
    "Answer with the number of one level and nothing else.",
    "Answer Yes or No and nothing else.",
];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    state: Option<Value>,
    questions: Option<Map<String, Value>>,
    files: Option<Value>,
    images: Option<Value>,
    videos: Option<Value>,
}

/// A question that is asked, with what its answer repeats.
struct Asked {
    id: String,
    kind: bn::QuestionKind,
    /// The names of the options, or the descriptions of the levels.
    options: Vec<Value>,
}

pub struct Decisions {
    model: String,
    asked: Vec<Asked>,
}

/// Status 422, as clients of this format expect for what is wrong in a body.
fn wrong(words: impl Into<String>) -> Failure {
    Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request_error", words)
}

/// A text as it is, anything else as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => true,
    }
}

/// The options of a question, each with its description.
fn criteria(place: &str, kind: bn::QuestionKind, given: Option<&Value>) -> Result<Vec<(String, String)>> {
    let described = |value: &Value| if value.is_null() { String::new() } else { text(value) };
    match (kind, given.filter(|value| !value.is_null())) {
        (bn::QuestionKind::Choice, Some(Value::Object(map)))
            if (1..=bn::MAX_OPTIONS).contains(&map.len()) =>
        {
            Ok(map.iter().map(|(name, value)| (name.clone(), described(value))).collect())
        }
        (bn::QuestionKind::Choice, _) => {
            Err(wrong(format!("'{place}.criteria' must be an object of 1 to {} options", bn::MAX_OPTIONS)))
        }
        (bn::QuestionKind::Score, Some(Value::Array(list))) if (1..=MOST_LEVELS).contains(&list.len()) => {
            let level = |(at, value): (usize, &Value)| (at.to_string(), described(value));
            Ok(list.iter().enumerate().map(level).collect())
        }
        (bn::QuestionKind::Score, _) => {
            Err(wrong(format!("'{place}.criteria' must be a list of 1 to {MOST_LEVELS} levels")))
        }
        (_, given) => {
            let map = match given {
                None => None,
                Some(Value::Object(map)) => Some(map),
                Some(_) => return Err(wrong(format!("'{place}.criteria' must be an object"))),
            };
            let side = |key: &str| map.and_then(|map| map.get(key)).map(described).unwrap_or_default();
            Ok(vec![("Yes".to_owned(), side("true")), ("No".to_owned(), side("false"))])
        }
    }
}

/// Reads a question. `spaced`: its options follow a text directly, and begin with a space.
fn question(id: &str, value: &Value, spaced: bool) -> Result<(bn::Question, Asked)> {
    let place = format!("questions.{id}");
    let Value::Object(fields) = value else { return Err(wrong(format!("'{place}' must be an object"))) };
    let kind = match fields.get("type").and_then(Value::as_str) {
        Some("choice") => bn::QuestionKind::Choice,
        Some("score") => bn::QuestionKind::Score,
        Some("noul") => bn::QuestionKind::YesNo,
        _ => return Err(wrong(format!("'{place}.type' must be 'choice', 'score' or 'noul'"))),
    };
    let Some(instructions) = fields.get("instructions").filter(|value| !is_empty(value)) else {
        return Err(wrong(format!(
            "'{place}.instructions' must be a text, an object or a list, and not empty"
        )));
    };
    let options = criteria(&place, kind, fields.get("criteria"))?;
    if options.iter().any(|(name, _)| name.is_empty()) {
        return Err(wrong(format!("'{place}.criteria' has an option without a name")));
    }
    let mut words = text(instructions);
    words.push_str("\n\n");
    for (name, description) in &options {
        match (kind, description.as_str()) {
            (bn::QuestionKind::YesNo, "") => {}
            (_, "") => words.push_str(&format!("- {name}\n")),
            (_, description) => words.push_str(&format!("- {name}: {description}\n")),
        }
    }
    words.push_str(ASKED[kind as usize]);
    if spaced {
        words.push_str("\n\nAnswer:");
    }
    let shown = |(at, (name, _)): (usize, &(String, String))| match kind {
        bn::QuestionKind::Score => fields["criteria"][at].clone(),
        _ => name.clone().into(),
    };
    let asked = Asked { id: id.to_owned(), kind, options: options.iter().enumerate().map(shown).collect() };
    let space = if spaced { " " } else { "" };
    let options = options.iter().map(|(name, _)| format!("{space}{name}")).collect();
    Ok((bn::Question { kind, name: id.to_owned(), text: words, options }, asked))
}

/// The messages of a state that is a conversation.
fn messages(state: &Value) -> Option<&Value> {
    let list = match state {
        Value::Object(map) => map.get("messages")?,
        other => other,
    };
    let is_message = |value: &Value| value.get("role").is_some_and(Value::is_string);
    let items = list.as_array().filter(|items| !items.is_empty())?;
    items.iter().all(is_message).then_some(list)
}

/// The prompt that the questions follow. With a chat template it is a conversation, whose answers come at once.
fn prompt(held: &Held, state: &Value) -> bn::Prompt {
    if !held.info.has_chat_template {
        return bn::Prompt::Text(format!("{}\n\n", text(state)));
    }
    let messages = messages(state).cloned();
    let messages = messages.unwrap_or_else(|| json!([{"role": "user", "content": text(state)}]));
    let chat = json!({"messages": messages, "chat_template_kwargs": {"enable_thinking": false}});
    bn::Prompt::Chat(bn::Chat::Json(chat.to_string()))
}

impl Api for Decisions {
    fn read(_: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let own: Own = fields.take().map_err(|failure| wrong(failure.message))?;
        for (name, value) in [("files", &own.files), ("images", &own.images), ("videos", &own.videos)] {
            if value.as_ref().is_some_and(|value| *value != json!([])) {
                return Err(wrong(format!("'{name}': this server takes text only")));
            }
        }
        let state = own.state.ok_or_else(|| wrong("'state' is missing"))?;
        let questions = own.questions.ok_or_else(|| wrong("'questions' is missing"))?;
        if questions.is_empty() || questions.len() > MOST_QUESTIONS {
            return Err(wrong(format!("'questions' must have 1 to {MOST_QUESTIONS} questions")));
        }
        let prompt = prompt(held, &state);
        let bytes = text(&state).len();
        if bytes > MOST_REPEATED / questions.len() {
            let n = questions.len();
            return Err(wrong(format!("a 'state' of {bytes} bytes for each of {n} questions is too large")));
        }
        let mut request = bn::Request { task: bn::Task::Decide, prompt, ..bn::Request::default() };
        fields.take::<Running>()?.apply(&mut request);
        let mut decisions =
            Self { model: held.shown().to_owned(), asked: Vec::with_capacity(questions.len()) };
        for (id, value) in &questions {
            let (question, asked) = question(id, value, !held.info.has_chat_template)?;
            request.questions.push(question);
            decisions.asked.push(asked);
        }
        let mut generation = Generation::one(request, false);
        // Each question is tokenized with the state.
        generation.cost = Some(bytes * questions.len());
        Ok((generation, decisions))
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, totals: &Totals) -> Result<String> {
        let decided =
            answers.into_iter().next().and_then(|answer| answer.finish.decisions).unwrap_or_default();
        let mut answers = Map::new();
        for (asked, decision) in self.asked.drain(..).zip(&decided) {
            let answer = answer(&asked, decision);
            answers.insert(asked.id, answer);
        }
        let usage = json!({"input_tokens": totals.prompt, "output_tokens": 0});
        Ok(write::json(&json!({"model": self.model, "answers": answers, "usage": usage})))
    }
}

fn answer(asked: &Asked, decision: &bn::Decision) -> Value {
    let probability = |at: usize| decision.options[at].probability;
    let named = |name: &dyn Fn(usize) -> String| -> Map<String, Value> {
        (0..decision.options.len()).map(|at| (name(at), probability(at).into())).collect()
    };
    match asked.kind {
        bn::QuestionKind::Choice => json!({
            "type": "choice",
            "choice": asked.options[decision.best],
            "probabilities": named(&|at| text(&asked.options[at])),
            "confidence": decision.confidence,
        }),
        bn::QuestionKind::Score => {
            let levels = asked.options.iter().enumerate();
            let legend: Map<String, Value> =
                levels.map(|(at, level)| (at.to_string(), level.clone())).collect();
            json!({
                "type": "score",
                "score": decision.value,
                "legend": legend,
                "probabilities": named(&|at| at.to_string()),
                "confidence": decision.confidence,
            })
        }
        _ => json!({"type": "noul", "noul": decision.value}),
    }
}
