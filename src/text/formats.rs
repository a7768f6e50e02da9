//! Formats as patterns of ECMA-262. If a regular expression cannot describe a format exactly, its pattern is
//! narrower: every match has the format.

use std::sync::LazyLock;

/// A format's pattern, anchored at both ends, and the length limit of its texts.
pub struct Format {
    pub pattern: String,
    pub longest: Option<u64>,
}

/// Years that common date libraries support; they exclude 0000, which RFC 3339 allows.
const YEAR: &str = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
const LEAP_YEAR: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
/// Excludes leap seconds, which no pattern can check and few programs parse.
const TIME: &str =
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// A label of at most 63 characters, without the hyphens of Punycode, whose rules patterns cannot express.
const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]?[a-zA-Z0-9]|[a-zA-Z0-9-]{2}[a-zA-Z0-9]|[a-zA-Z0-9-](?:[a-zA-Z0-9][a-zA-Z0-9-]|-[a-zA-Z0-9])[a-zA-Z0-9-]{0,58}[a-zA-Z0-9])?";
const ATOM: &str = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+";
const BYTE: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const H16: &str = "[0-9a-fA-F]{1,4}";
const PERCENT: &str = "%[0-9a-fA-F]{2}";
const UNRESERVED: &str = r"a-zA-Z0-9\-._~";
const SUB_DELIMS: &str = "!$&'()*+,;=";
/// RFC 3987's `ucschar` in the first plane.
const UCS: &str = r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF";

fn date() -> String {
    let short = "(?:0[1-9]|[12][0-9]|30)";
    format!(
        "(?:{YEAR}-(?:(?:0[13578]|1[02])-(?:{short}|31)|(?:0[469]|11)-{short}|02-(?:0[1-9]|1[0-9]|2[0-8]))|{LEAP_YEAR}-02-29)"
    )
}

fn ipv4() -> String {
    format!(r"(?:{BYTE}\.){{3}}{BYTE}")
}

/// RFC 4291's addresses: eight groups, `::` for one or more of them, and the last two optionally written as
/// IPv4.
fn ipv6() -> String {
    let last = format!("(?:{H16}:{H16}|{})", ipv4());
    let mut all = vec![format!("(?:{H16}:){{6}}{last}")];
    for before in 0..=5 {
        let head =
            if before == 0 { String::new() } else { format!("(?:(?:{H16}:){{0,{}}}{H16})?", before - 1) };
        all.push(format!("{head}::(?:{H16}:){{{}}}{last}", 5 - before));
    }
    all.push(format!("(?:(?:{H16}:){{0,5}}{H16})?::{H16}"));
    all.push(format!("(?:(?:{H16}:){{0,6}}{H16})?::"));
    format!("(?:{})", all.join("|"))
}

/// RFC 3986's URIs, or RFC 3987's IRIs with `more` characters: absolute ones, and relative ones.
fn uri(more: &str) -> (String, String) {
    let char_of = |extra: &str| format!("(?:[{UNRESERVED}{SUB_DELIMS}{extra}{more}]|{PERCENT})");
    let (pchar, segment_nc) = (char_of(":@"), char_of("@"));
    let (user, name, tail) = (char_of(":"), char_of(""), char_of(":@/?"));
    let literal = format!(r"\[(?:{}|[vV][0-9a-fA-F]+\.[{UNRESERVED}{SUB_DELIMS}:]+)\]", ipv6());
    let authority = format!("(?:{user}*@)?(?:{literal}|{name}*)(?::[0-9]*)?");
    let with_authority = format!("//{authority}(?:/{pchar}*)*");
    let absolute = format!("/(?:{pchar}+(?:/{pchar}*)*)?");
    let rootless = format!("{pchar}+(?:/{pchar}*)*");
    let relative = format!("{segment_nc}+(?:/{pchar}*)*");
    let behind = format!(r"(?:\?{tail}*)?(?:#{tail}*)?");
    let uri = format!("[a-zA-Z][a-zA-Z0-9+.-]*:(?:{with_authority}|{absolute}|{rootless})?{behind}");
    let reference = format!("(?:{uri}|(?:{with_authority}|{absolute}|{relative})?{behind})");
    (uri, reference)
}

fn duration() -> String {
    let second = "[0-9]+S";
    let minute = format!("[0-9]+M(?:{second})?");
    let time = format!("T(?:[0-9]+H(?:{minute})?|{minute}|{second})");
    let day = "[0-9]+D";
    let month = format!("[0-9]+M(?:{day})?");
    format!("P(?:(?:[0-9]+Y(?:{month})?|{month}|{day})(?:{time})?|{time}|[0-9]+W)")
}

static FORMATS: LazyLock<Vec<(&str, Format)>> = LazyLock::new(|| {
    let host = format!(r"{LABEL}(?:\.{LABEL})*");
    let domain = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?";
    let (uri_is, uri_reference) = uri("");
    let (iri, iri_reference) = uri(UCS);
    let pointer = "(?:/(?:[^~/]|~[01])*)*";
    let all = [
        ("date", date()),
        ("time", TIME.to_owned()),
        ("date-time", format!("{}[Tt]{TIME}", date())),
        ("duration", duration()),
        ("email", format!(r"{ATOM}(?:\.{ATOM})*@(?:{domain}(?:\.{domain})*|\[{}\])", ipv4())),
        ("hostname", host),
        ("ipv4", ipv4()),
        ("ipv6", ipv6()),
        ("uuid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned()),
        ("uri", uri_is),
        ("uri-reference", uri_reference),
        ("iri", iri),
        ("iri-reference", iri_reference),
        ("json-pointer", pointer.to_owned()),
        ("relative-json-pointer", format!("(?:0|[1-9][0-9]*)(?:#|{pointer})")),
    ];
    let made = |(name, pattern): (&'static str, String)| {
        let longest = (name == "hostname").then_some(253);
        (name, Format { pattern: format!("^(?:{pattern})$"), longest })
    };
    all.into_iter().map(made).collect()
});

pub fn find(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|row| row.0 == name).map(|row| &row.1)
}
