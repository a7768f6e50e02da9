//! From a constraint to a parser that stands at the beginning of an output.

use super::source::{Constraint, refused};
use super::vocabulary::Vocabulary;
use crate::base::{Error, Result, panics, threads};
use llguidance::TokenParser;
use llguidance::api::GrammarInit;
use llguidance::earley::lexerspec::LexerSpec;

/// For recursion over grammars within the bounds of `source`.
pub const STACK: usize = 256 << 20;

/// `InvalidArgument` with llguidance's reason.
pub fn compile(vocabulary: &Vocabulary, constraint: &Constraint) -> Result<TokenParser> {
    threads::run_on_stack("bn-grammar", STACK, || {
        // A panic inside of llguidance is an error of its own; this is for what runs around it.
        panics::catch(|| {
            let factory = &vocabulary.factory;
            let grammar = GrammarInit::Serialized(constraint.grammar()?);
            let tokens = Some(factory.tok_env().clone());
            let (grammar, lexer) = grammar.to_internal(tokens, factory.limits().clone()).map_err(reason)?;
            check(vocabulary, &lexer)?;
            let grammar = GrammarInit::Internal(grammar, lexer);
            let mut parser = factory.create_parser_from_init_default(grammar).map_err(reason)?;
            parser.start_without_prompt();
            Ok(parser)
        })
        .unwrap_or_else(|_| Err(refused("it is beyond what llguidance can compute")))
    })?
}

/// What a lexeme may weigh, about its nodes and bytes: one derivative takes up to the square of it.
const MOST_WEIGHT: u32 = 50_000;

/// llguidance computes a lexer's first transitions without a limit. Here they are computed under one, before.
fn check(vocabulary: &Vocabulary, spec: &LexerSpec) -> Result<()> {
    let mut limits = vocabulary.factory.limits().clone();
    let mut lexer = spec.to_regex_vec(&mut limits).map_err(reason)?;
    let all = spec.all_lexemes();
    if let Some(heavy) = all.iter().find(|lexeme| lexer.lexeme_weight(*lexeme) > MOST_WEIGHT) {
        let shown: String = spec.lexeme_def_to_string(heavy).chars().take(80).collect();
        return Err(refused(format!("a terminal is too large: {shown}")));
    }
    lexer.set_fuel(limits.initial_lexer_fuel);
    let start = lexer.initial_state(&all);
    for byte in 0..=255 {
        lexer.transition(start, byte);
    }
    match lexer.get_error() {
        None => Ok(()),
        Some(why) => Err(refused(format!("its terminals are too complex: {why}"))),
    }
}

/// What llguidance says, without the parser's state.
pub fn reason(error: impl std::fmt::Display) -> Error {
    let text = format!("{error:#}");
    let end =
        ["\n<state>", "\n<non-verbose/>", "\n<backtrace>"].iter().filter_map(|mark| text.find(mark)).min();
    let text = text[..end.unwrap_or(text.len())].replace(" without 'referencing' feature", "");
    // Its name for a place where nothing is allowed.
    refused(if text == "NoExtensionBias" { "no token matches here" } else { &text })
}
