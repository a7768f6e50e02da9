//! References to items of stored responses.
use super::fields::TREE;
use crate::failure::Result;
use crate::memory::Lease;
use crate::store::Store;
use serde_json::Value;
use std::mem;

/// The prefix of response ids. The other characters also occur in the ids of the response's items, after the
/// items' own prefixes.
const RESPONSE: &str = "resp_";
/// Number of characters of a response's id after the prefix.
const SIGNS: usize = 16;

/// The id of the item `index` of a response.
pub fn item_id(prefix: &str, response: &str, index: usize) -> String {
    format!("{prefix}_{}{index:02x}", response.trim_start_matches(RESPONSE))
}

/// The id of the item that an item refers to.
fn referred(item: &Value) -> Option<&str> {
    let bare = item.get("role").is_none() && item.get("content").is_none();
    match item.get("type").filter(|kind| !kind.is_null()) {
        None if bare => item.get("id")?.as_str(),
        Some(kind) if kind == "item_reference" => item.get("id")?.as_str(),
        _ => None,
    }
}

/// Replaces references by their items, and removes references to items that are not stored.
pub fn resolve(items: &mut Vec<Value>, store: &Store, lease: &mut Lease) -> Result<()> {
    for mut item in mem::take(items) {
        if let Some(id) = referred(&item) {
            let Some(found) = find(id, store, lease)? else { continue };
            item = found;
        }
        items.push(item);
    }
    Ok(())
}

fn find(id: &str, store: &Store, lease: &mut Lease) -> Result<Option<Value>> {
    let signs = id.split_once('_').and_then(|(_, signs)| signs.get(..SIGNS));
    let Some(kept) = signs.and_then(|signs| store.get(&format!("{RESPONSE}{signs}"))) else {
        return Ok(None);
    };
    let bytes = TREE * kept.response.len();
    lease.take(bytes)?;
    let mut response: Value = serde_json::from_str(&kept.response).unwrap_or_default();
    let mut output = response["output"].as_array_mut().map(mem::take).unwrap_or_default().into_iter();
    let found = output.find(|item| item["id"] == id);
    lease.give(bytes.saturating_sub(TREE * found.as_ref().map_or(0, |item| item.to_string().len())));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::store::Kept;
    use serde_json::json;

    #[test]
    fn references_become_items() {
        let store = Store::new(10_000);
        let id = store.id(7);
        let [reasoning, text] = [item_id("rs", &id, 0), item_id("msg", &id, 1)];
        let item = |id: &str| json!({"id": id, "type": "message", "role": "assistant"});
        let response = json!({"output": [item(&reasoning), item(&text)]}).to_string();
        assert!(store.put(&id, Kept { response, items: "[]".to_owned() }));
        let said = json!({"id": "x", "role": "user", "content": "a"});
        let mut items = vec![
            said.clone(),
            json!({"type": "item_reference", "id": text}),
            json!({ "id": reasoning }),
            json!({"type": null, "id": "msg_1"}),
            json!({"type": "item_reference", "id": format!("{text}1")}),
            json!({"type": "item_reference"}),
        ];
        resolve(&mut items, &store, &mut Memory::new(1 << 20).lease()).unwrap();
        assert_eq!(items, [said, item(&text), item(&reasoning), json!({"type": "item_reference"})]);
    }
}
