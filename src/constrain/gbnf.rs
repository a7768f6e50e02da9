//! Translates llama.cpp's grammars (GBNF) to Lark.
//!
//! GBNF has no lexer, but llguidance needs one to be fast. So each rule that is not recursive becomes a
//! terminal, and so does each run of such parts within a recursive rule. Terminals match greedily: a
//! derivation in which a terminal ends early is lost. Every output still matches the grammar.

mod emit;
mod parse;

pub(super) type Parsed<T> = Result<T, String>;

/// A part of a rule.
enum Node {
    Text(String),
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    Any,
    /// A rule, by its index in the list of rules.
    Rule(usize),
    Seq(Vec<Node>),
    Or(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

/// `Err` holds the reason and the line number.
pub(super) fn to_lark(text: &str) -> Parsed<String> {
    let rules = parse::rules(text)?;
    Ok(emit::lark(&rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lark(text: &str) -> String {
        to_lark(text).unwrap()
    }

    #[test]
    fn a_grammar_without_recursion_is_one_terminal() {
        let text = "root ::= \"a\\n\\x41\" [^\\]a-z-] b{2,3} # so\nb ::= (\"x\" |\n \"y\")?";
        assert_eq!(
            lark(text),
            "start: R0\nR0: \"a\\nA\" /[^\\u{5d}\\u{61}-\\u{7a}\\u{2d}]/ R1{2,3}\nR1: (\"x\" | \"y\")?\n"
        );
    }

    #[test]
    fn recursive_rules_stay_rules_of_terminals() {
        let text = "root ::= \"[\" ws (root (\",\" ws root)*)? \"]\" ws\nws ::= [ ]*";
        assert_eq!(
            lark(text),
            "start: r0\nr0: (T0 (r0 (T1 r0)*)? T2)\nT0: \"[\" R1\nT1: \",\" R1\nT2: \"]\" R1\nR1: /[\\u{20}]/*\n"
        );
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, what) in [
            ("", "there is no rule named root"),
            ("a ::= \"b\"", "there is no rule named root"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: root is defined twice"),
            ("root ::= b", "line 1: there is no rule named b"),
            ("root ::= \"a", "line 1: a text without an end"),
            ("root ::= [a", "line 1: a class without an end"),
            ("root ::= []", "line 1: an empty class"),
            ("root ::= (\"a\"", "line 1: a parenthesis without its other"),
            ("root ::= \"a\")", "line 1: what is \")\" here?"),
            ("root \"a\"", "line 1: a rule's name must be followed by ::="),
            ("root ::= *", "line 1: nothing to repeat"),
            ("root ::= \"a\"**", "line 1: a repetition of a repetition"),
            ("root ::= \"a\"{3,2}", "line 1: {3,2} is no repetition"),
            ("root ::= <think>", "line 1: names of tokens are not supported"),
            ("root ::= \"\\q\"", "line 1: \\q is no escape"),
        ] {
            assert_eq!(to_lark(text).unwrap_err(), what, "{text}");
        }
    }
}
