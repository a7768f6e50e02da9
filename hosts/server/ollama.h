// Ollama's API.
#ifndef BN_SERVER_OLLAMA_H
#define BN_SERVER_OLLAMA_H

#include "server.h"

extern const struct style ollama_chat_style, ollama_generate_style, ollama_embed_style, ollama_embeddings_style,
    ollama_info_style;

// Answers of ollama_info.c, which load no model.
void ollama_tags(struct exchange *ex);
void ollama_ps(struct exchange *ex);
void ollama_show(struct exchange *ex);

// A time as Ollama writes it, as JSON.
void ollama_write_time(struct buffer *out, uint64_t unix_seconds);

// Fields (ollama_fields.c), as in values.h.
const char *ollama_read_messages(struct exchange *ex, const cJSON *value);
const char *ollama_read_format(struct exchange *ex, const cJSON *value);
const char *ollama_read_think(struct exchange *ex, const cJSON *value);
const char *ollama_read_keep_alive(struct exchange *ex, const cJSON *value);
const char *ollama_read_predict(struct exchange *ex, const cJSON *value);
const char *ollama_read_window(struct exchange *ex, const cJSON *value);
const char *ollama_read_mirostat(struct exchange *ex, const cJSON *value);
// A request without anything to say loads its model, or lets go of it: true if this was one, which is answered.
bool ollama_loads(struct exchange *ex);
// Call this once all fields are read. A prompt becomes a conversation, if the model knows them.
void ollama_done(struct exchange *ex);

#endif
