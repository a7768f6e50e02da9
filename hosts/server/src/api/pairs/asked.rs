//! The pairs of a request, and the engine's requests for them.
use super::template::Template;
use crate::failure::{Failure, Result};
use crate::fields::{Fields, U32, Whole};
use crate::models::Held;
use crate::request::engine::Running;
use crate::request::length;
use crate::run::{Call, Generation};
use serde::Deserialize;
use serde_json::Value;

/// Maximum bytes of the texts that are repeated for each document, over all documents.
const MOST_REPEATED: usize = 16 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Own {
    template: Option<String>,
    instruction: Option<String>,
    max_tokens_per_doc: Option<Whole<1, U32>>,
}

/// The pairs of a request.
pub struct Pairs {
    /// One for all documents, or one for each.
    pub queries: Vec<String>,
    pub documents: Vec<String>,
    pub template: Template,
    instruction: Option<String>,
    /// Maximum tokens of a document.
    pub document_tokens: usize,
}

/// A text, or a list of texts or of objects with one.
fn texts(field: &str, value: &Value, most: usize) -> Result<Vec<String>> {
    let wrong = |words: String| Failure::invalid(format!("'{field}' {words}"));
    let items = match value {
        Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    if items.is_empty() {
        return Err(wrong("must not be empty".to_owned()));
    }
    if items.len() > most {
        return Err(wrong(format!("has more than the {most} texts that this server takes")));
    }
    let text = |item: &Value| item.as_str().or_else(|| item.get("text")?.as_str()).map(str::to_owned);
    let texts: Option<_> = items.iter().map(text).collect();
    texts.ok_or_else(|| wrong("must have texts, or objects with a 'text', only".to_owned()))
}

impl Pairs {
    pub fn new(
        call: &Call,
        held: &Held,
        own: Own,
        queries: (&str, &Value),
        documents: (&str, &Value),
    ) -> Result<(Self, bool)> {
        let most = held.options.queue as usize;
        let documents = texts(documents.0, documents.1, most)?;
        let (name, value) = queries;
        let queries = texts(name, value, most)?;
        if queries.iter().any(String::is_empty) {
            return Err(Failure::invalid(format!("'{name}' must not be empty")));
        }
        if queries.len() != 1 && queries.len() != documents.len() {
            return Err(Failure::invalid("'text_1' must be one text, or as many as 'text_2'"));
        }
        let given = own.template.map(|text| text.parse::<Template>()).transpose();
        let given = given.map_err(|words| Failure::invalid(format!("'template' {words}")))?;
        // The server's template is for models that generate.
        let server = call.app.template.as_ref();
        let by_head = held.info.scores_pairs && given.is_none() && (server.is_none() || held.info.encodes);
        let template = given.or_else(|| server.cloned()).unwrap_or_default();
        let document_tokens = own.max_tokens_per_doc.map_or(usize::MAX, |most| most.u32() as usize);
        let pairs = Self { queries, documents, template, instruction: own.instruction, document_tokens };
        pairs.check_bytes()?;
        Ok((pairs, by_head))
    }

    /// Refuses a small body that would become large because texts are repeated for each document.
    fn check_bytes(&self) -> Result<()> {
        let query = if let [query] = &self.queries[..] { query.len() } else { 0 };
        let each = query + self.template.bytes() + self.instruction.as_ref().map_or(0, String::len);
        let count = self.documents.len();
        if each <= MOST_REPEATED / count {
            return Ok(());
        }
        let words = format!("{each} bytes of query and template for each of {count} texts are too many");
        Err(Failure::invalid(words))
    }

    fn query(&self, at: usize) -> &str {
        if let [query] = &self.queries[..] { query } else { &self.queries[at] }
    }

    pub fn generation(&self, held: &Held, by_head: bool, fields: &mut Fields) -> Result<Generation> {
        if self.instruction.is_some() && (!by_head || held.info.encodes) {
            let words = "'instruction' is for models that score pairs with a prompt of their own";
            return Err(Failure::invalid(words));
        }
        let mut request = bn::Request::default();
        fields.take::<Running>()?.apply(&mut request);
        let requests = match by_head {
            true => (0..self.documents.len()).map(|at| self.by_head(held, &request, at)).collect(),
            false => self.prompts(held, &request)?,
        };
        let mut generation = Generation::one(request, false);
        generation.requests = requests;
        Ok(generation)
    }

    /// A request for a model that scores pairs itself.
    fn by_head(&self, held: &Held, template: &bn::Request, at: usize) -> bn::Request {
        let document = &self.documents[at];
        let document = match self.document_tokens {
            usize::MAX => document,
            most => length::cut(&held.model, document, most, bn::Tokenize::default()),
        };
        let (query, document) = (self.query(at).to_owned(), document.to_owned());
        let prompt = match &self.instruction {
            Some(instruction) => {
                let message = |role: &str, content: String| bn::Message { role: role.to_owned(), content };
                bn::Prompt::Chat(bn::Chat::Messages(vec![
                    message("system", instruction.clone()),
                    message("query", query),
                    message("document", document),
                ]))
            }
            None => bn::Prompt::Pair { query, document },
        };
        bn::Request { task: bn::Task::Rerank, prompt, ..template.clone() }
    }
}
