//! Prompts of a document and a query: `--rerank-template` and the field `template`.
use std::str::FromStr;

const DOCUMENT: &str = "{document}";
const QUERY: &str = "{query}";

/// Turns a document and a query into a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The texts before, between and after them.
    pub parts: [String; 3],
    pub query_first: bool,
    /// The score is a verdict of two words, not the query's likelihood.
    pub words: Option<[String; 2]>,
}

/// For models without a template for this task: the likelihood of the query after the document.
impl Default for Template {
    fn default() -> Self {
        Self {
            parts: ["Document:\n".to_owned(), "\n\nQuery:\n".to_owned(), String::new()],
            query_first: false,
            words: None,
        }
    }
}

impl FromStr for Template {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let place = |name: &str| {
            let mut places = text.match_indices(name).map(|(at, _)| at);
            let first = places.next().filter(|_| places.next().is_none());
            first.ok_or("must have {document} and {query}, each once")
        };
        let (document, query) = (place(DOCUMENT)?, place(QUERY)?);
        let query_first = query < document;
        let ends = [(document, document + DOCUMENT.len()), (query, query + QUERY.len())];
        let [first, second] = if query_first { [ends[1], ends[0]] } else { ends };
        let (before, between) = (text[..first.0].to_owned(), text[first.1..second.0].to_owned());
        let rest = &text[second.1..];
        if !query_first && rest.is_empty() {
            return Ok(Self { parts: [before, between, String::new()], query_first, words: None });
        }
        let (behind, words) =
            verdict(rest).ok_or("must end with {query}, or with two words like {yes|no}")?;
        Ok(Self { parts: [before, between, behind], query_first, words: Some(words) })
    }
}

/// The words of `...{yes|no}`, and the text before them.
fn verdict(rest: &str) -> Option<(String, [String; 2])> {
    let (behind, words) = rest.strip_suffix('}')?.rsplit_once('{')?;
    let (yes, no) = words.split_once('|').filter(|(yes, no)| !yes.is_empty() && !no.is_empty())?;
    Some((behind.to_owned(), [yes.to_owned(), no.to_owned()]))
}

/// Whether a part ends with a space, which is then tokenized with the following text, as tokenizers expect.
pub fn spaced(part: &str) -> bool {
    part.ends_with(' ')
}

impl Template {
    /// The tokens of the two words, each of which must be one token of the model; none for a likelihood. Err:
    /// the word that is not.
    pub fn verdict_tokens(&self, model: &bn::Model) -> bn::Result<Result<Vec<u32>, String>> {
        let how = bn::Tokenize { add_special: false, parse_special: true };
        let space = if spaced(&self.parts[2]) { " " } else { "" };
        let mut tokens = Vec::new();
        for word in self.words.iter().flatten() {
            let found = model.tokenize(&format!("{space}{word}"), how)?;
            let [token] = found[..] else {
                let word: String = word.chars().take(64).collect();
                let words =
                    format!("'template' ends with '{space}{word}', which is not one token of this model");
                return Ok(Err(words));
            };
            tokens.push(token);
        }
        Ok(Ok(tokens))
    }

    /// Checks that `--rerank-template` fits the model. Err: why not.
    pub fn check(&self, model: &bn::Model) -> Result<(), String> {
        let checked = self.verdict_tokens(model).map_err(|error| error.message().to_owned());
        checked.flatten().map(|_| ()).map_err(|why| format!("--rerank-template: {why}"))
    }

    pub fn bytes(&self) -> usize {
        self.parts.iter().map(String::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_without_a_verdict_ends_with_the_query() {
        let usual = "Document:\n{document}\n\nQuery:\n{query}".parse();
        assert_eq!(usual, Ok(Template::default()));
        let template: Template = "a{document}b{query}".parse().unwrap();
        assert_eq!(template.parts, ["a", "b", ""]);
        assert_eq!((template.query_first, template.words), (false, None));
    }

    #[test]
    fn a_verdict_is_two_words_at_the_end() {
        let template: Template = "{query}b{document}c{x}{yes|no}".parse().unwrap();
        assert_eq!(template.parts, ["", "b", "c{x}"]);
        assert_eq!(template.words, Some(["yes".to_owned(), "no".to_owned()]));
        assert!(template.query_first);
    }

    #[test]
    fn other_templates_are_refused() {
        for (text, words) in [
            ("{query}", "each once"),
            ("{query}{document}{query}", "each once"),
            ("{query}{document}", "must end with {query}, or"),
            ("{document}{query}?", "must end"),
            ("{document}{query}{yes|}", "must end"),
            ("{document}{query}{|no}", "must end"),
            ("{document}{query}{yes|no} ", "must end"),
            ("{document}{query}}", "must end"),
        ] {
            assert!(text.parse::<Template>().unwrap_err().contains(words), "{text}");
        }
    }
}
