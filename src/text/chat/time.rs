//! `strftime_now`: the day and time in UTC, as the templates of Llama 3 and others print it.

use super::value::{Outcome, fail};
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: &str = "January February March April May June July August September October November December";

/// Maximum length of a format; a directive turns two characters into at most nine.
const MAX_FORMAT: usize = 256;

pub(super) fn format(format: &str, now: SystemTime) -> Outcome<String> {
    if format.len() > MAX_FORMAT {
        return Err(fail(format!("strftime_now: the format is longer than {MAX_FORMAT} bytes")));
    }
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) as i64;
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let weekday = DAYS[(days + 3).rem_euclid(7) as usize];
    let month_name = MONTHS.split(' ').nth(month as usize - 1).unwrap_or_default();
    let of_year = days - days_before(year, 1, 1) + 1;
    let twelve = (hour + 11) % 12 + 1;
    let half = if hour < 12 { "AM" } else { "PM" };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        // glibc's flag: no leading zero.
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let two = |n: i64| if bare { format!("{n}") } else { format!("{n:02}") };
        out += &match directive {
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('m') => two(month),
            Some('b' | 'h') => month_name[..3].into(),
            Some('B') => month_name.into(),
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('a') => weekday[..3].into(),
            Some('A') => weekday.into(),
            Some('H') => two(hour),
            Some('I') => two(twelve),
            Some('M') => two(minute),
            Some('S') => two(second % 60),
            Some('p') => half.into(),
            Some('j') if bare => of_year.to_string(),
            Some('j') => format!("{of_year:03}"),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => "UTC".into(),
            Some('z') => "+0000".into(),
            Some('%') => "%".into(),
            other => {
                let other = other.map_or(String::new(), String::from);
                return Err(fail(format!("strftime_now: the directive '%{other}' is not supported")));
            }
        };
    }
    Ok(out)
}

/// Number of days from 1970-01-01 to this day of the Gregorian calendar.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day comes last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day - 1 - 719_468
}

/// Year, month and day of a day counted from 1970-01-01; `days` must not be negative.
fn civil(days: i64) -> (i64, i64, i64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1, 1, 1) <= days {
        year += 1;
    }
    let month = (2..=12).rev().find(|&month| days_before(year, month, 1) <= days).unwrap_or(1);
    (year, month, days - days_before(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64, text: &str) -> String {
        format(text, UNIX_EPOCH + Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn known_days() {
        assert_eq!(at(0, "%A %d %B %Y %H:%M:%S %j"), "Thursday 01 January 1970 00:00:00 001");
        // 29 February 2024, 13:05:09.
        assert_eq!(at(1_709_211_909, "%d %b %Y"), "29 Feb 2024");
        assert_eq!(
            at(1_709_211_909, "%a %-d/%m/%y %I:%M %p %F %T %%"),
            "Thu 29/02/24 01:05 PM 2024-02-29 13:05:09 %"
        );
        assert_eq!(at(1_735_689_599, "%Y-%m-%d %j"), "2024-12-31 366");
        assert_eq!(at(1_735_689_600, "%Y-%m-%d %-j"), "2025-01-01 1");
        assert_eq!(at(4_107_542_400, "%Y-%m-%d %a"), "2100-03-01 Mon");
    }

    #[test]
    fn every_day_of_two_centuries_follows_the_last() {
        let mut previous = (1969, 12, 31);
        for days in 0..73_050 {
            let (year, month, day) = civil(days);
            assert_eq!(days_before(year, month, day), days);
            let next = match previous {
                (y, 12, 31) => (y + 1, 1, 1),
                (y, m, d) if (year, month) == (y, m) => (y, m, d + 1),
                (y, m, _) => (y, m + 1, 1),
            };
            assert_eq!((year, month, day), next);
            previous = (year, month, day);
        }
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        assert!(format("%Q", UNIX_EPOCH).is_err());
        assert!(format("%", UNIX_EPOCH).is_err());
        assert!(format(&"x".repeat(300), UNIX_EPOCH).is_err());
    }
}
