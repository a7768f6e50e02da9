//! Metrics as Prometheus text, in which the samples of a family follow its comments.
use std::fmt::Write;

/// Merges the metrics of all engines, which have the same families. Each family is written once, with the samples of
/// all models, which get a label. `engines` has the models' names and their engines' metrics.
pub fn together(engines: &[(String, String)]) -> String {
    let mut families: Vec<(String, String)> = Vec::new(); // comments, and the samples after them
    for (model, text) in engines {
        let (mut comments, mut family) = (String::new(), 0);
        for line in text.lines() {
            if line.starts_with('#') {
                comments.extend([line, "\n"]);
                continue;
            }
            if !comments.is_empty() {
                let new = std::mem::take(&mut comments);
                family = families.iter().position(|(known, _)| *known == new).unwrap_or(families.len());
                if family == families.len() {
                    families.push((new, String::new()));
                }
            }
            if let Some((_, samples)) = families.get_mut(family) {
                add_labelled(samples, line, model);
            }
        }
    }
    families.into_iter().map(|(comments, samples)| comments + &samples).collect()
}

/// Metrics while there is no engine.
pub const LOADING: &str = "# HELP bn_engine_state 1 for the state that the engine is in.\n\
    # TYPE bn_engine_state gauge\nbn_engine_state{state=\"loading\"} 1\n";

/// The metric for which of several models are loaded.
pub fn loaded<'a>(out: &mut String, models: impl Iterator<Item = (&'a str, bool)>) {
    out.push_str("# HELP bn_model_loaded 1 for a model that is loaded.\n# TYPE bn_model_loaded gauge\n");
    for (name, is_loaded) in models {
        let _ = writeln!(out, "bn_model_loaded{{model={}}} {}", label(name), u8::from(is_loaded));
    }
}

/// Adds a label in front of a sample's labels.
fn add_labelled(out: &mut String, sample: &str, model: &str) {
    let (name, rest) = sample.split_at(sample.find(['{', ' ']).unwrap_or(sample.len()));
    let (end, rest) = rest.strip_prefix('{').map_or(("}", rest), |rest| (",", rest));
    let _ = writeln!(out, "{name}{{model={}{end}{rest}", label(model));
}

/// A label's value, quoted.
fn label(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n"))
}

/// A family with one sample.
pub fn single(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_several_engines_come_once() {
        let text = |n: u32| {
            format!("# HELP a A.\n# TYPE a gauge\na {n}\n# TYPE b counter\nb{{x=\"y\"}} {n}\nb_sum {n}\n")
        };
        let more = format!("{}# TYPE c gauge\nc 1\n", text(2));
        assert_eq!(
            together(&[("one".to_owned(), text(1)), ("t\"wo".to_owned(), more)]),
            "# HELP a A.\n# TYPE a gauge\na{model=\"one\"} 1\na{model=\"t\\\"wo\"} 2\n\
             # TYPE b counter\nb{model=\"one\",x=\"y\"} 1\nb_sum{model=\"one\"} 1\n\
             b{model=\"t\\\"wo\",x=\"y\"} 2\nb_sum{model=\"t\\\"wo\"} 2\n\
             # TYPE c gauge\nc{model=\"t\\\"wo\"} 1\n"
        );
        assert_eq!(together(&[]), "");
    }
}
