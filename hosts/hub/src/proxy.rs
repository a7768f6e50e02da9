//! Proxies from the environment, by the scheme of the URL, as curl reads them. ureq itself uses one variable for all
//! schemes.
use std::env;

use ureq::Proxy;

/// The proxy for a scheme, "http" or "https". An invalid URL is ignored.
pub fn proxy_for(scheme: &str) -> Option<Proxy> {
    choose(scheme, &|name| env::var(name).ok())
}

fn choose(scheme: &str, get: &dyn Fn(&str) -> Option<String>) -> Option<Proxy> {
    // HTTP_PROXY in capitals may come from a request's header "Proxy" in a CGI program: curl does not read it.
    let names: &[&str] = match scheme {
        "https" => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        _ => &["http_proxy", "all_proxy", "ALL_PROXY"],
    };
    let first = |names: &[&str]| names.iter().find_map(|name| get(name).filter(|value| !value.is_empty()));
    let given = Proxy::new(&first(names)?).ok()?;
    let builder = Proxy::builder(given.protocol()).host(given.host()).port(given.port());
    let builder = given.username().into_iter().fold(builder, |builder, user| builder.username(user));
    let builder = given.password().into_iter().fold(builder, |builder, password| builder.password(password));
    let direct = first(&["no_proxy", "NO_PROXY"]).unwrap_or_default();
    let hosts = direct.split([',', ' ']).filter(|host| !host.is_empty());
    hosts.fold(builder, with_direct).build().ok()
}

/// For curl, a domain means its subdomains too, with a dot before it or without.
fn with_direct(builder: ureq::ProxyBuilder, host: &str) -> ureq::ProxyBuilder {
    match host.trim_start_matches('.') {
        "*" => builder.no_proxy("*"),
        domain => builder.no_proxy(domain).no_proxy(&format!(".{domain}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(scheme: &str, variables: &[(&str, &str)]) -> Option<Proxy> {
        choose(scheme, &|name| {
            variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_scheme_has_its_variables() {
        let all = [
            ("http_proxy", "http://one:81"),
            ("HTTPS_PROXY", "http://me:p%40ss@two:82"),
            ("ALL_PROXY", "socks5://three"),
        ];
        assert_eq!(chosen("http", &all).unwrap().host(), "one");
        let secure = chosen("https", &all).unwrap();
        assert_eq!((secure.host(), secure.port()), ("two", 82));
        assert_eq!((secure.username(), secure.password()), (Some("me"), Some("p@ss")));
        assert_eq!(chosen("http", &all[1..]).unwrap().host(), "three");
        assert_eq!(chosen("http", &[("HTTP_PROXY", "http://one:81")]), None);
        assert_eq!(chosen("https", &[("https_proxy", "")]), None);
    }

    #[test]
    fn hosts_without_proxy_include_their_subdomains() {
        let proxy =
            chosen("https", &[("https_proxy", "one:81"), ("no_proxy", "a.example, .b.example")]).unwrap();
        for (host, direct) in [
            ("a.example", true),
            ("x.a.example", true),
            ("b.example", true),
            ("x.b.example", true),
            ("xa.example", false),
            ("example", false),
        ] {
            assert_eq!(proxy.is_no_proxy(&format!("https://{host}/x").parse().unwrap()), direct, "{host}");
        }
        let all = chosen("https", &[("https_proxy", "one:81"), ("no_proxy", "*")]).unwrap();
        assert!(all.is_no_proxy(&"https://x/".parse().unwrap()));
    }
}
