"""Chat templates in the styles of published models, and conversations to write with them."""

from typing import NamedTuple

Messages = list[dict[str, str]]


class ChatTemplate(NamedTuple):
    """A Jinja source, and the tokens that it writes; the first of them ends a turn."""

    source: str
    tokens: tuple[str, ...]


TEMPLATES: dict[str, ChatTemplate] = {
    "ChatML": ChatTemplate(
        "{%- if messages[0]['role'] != 'system' %}\n    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}\n"
        "{%- endif %}\n{%- for message in messages %}\n"
        "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
        ("<|im_end|>", "<|im_start|>"),
    ),
    "Llama 3": ChatTemplate(
        "{% set loop_messages = messages %}{% for message in loop_messages %}"
        "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
        " + message['content'] | trim + '<|eot_id|>' %}"
        "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        ("<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    ),
    "Mistral": ChatTemplate(
        "{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
        "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
        ("[/INST]", "[INST]"),
    ),
    "loops": ChatTemplate(
        "{%- for message in messages -%}\n"
        "    {%- if loop.first -%}{{ bos_token }}### Conversation{{ '\\n' }}{%- endif -%}\n"
        "    ## {{ message.role | capitalize }}: {{ message.content | trim }}\n"
        "    {% if message.role == 'assistant' %}{{ eos_token }}{% endif %}\n"
        "    {%- if loop.last and add_generation_prompt %}\n## Assistant:{% endif %}\n"
        "{%- endfor %}",
        (),
    ),
}

HERMES = (
    "{%- if tools %}<|im_start|>system\nCall one of {% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>"
    "\n{%- endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'tool' %}<tool_response>{{ m.tool_call_id + ' ' + m.content }}</tool_response>"
    "{%- elif m.tool_calls is defined %}{{ m.content }}{% for call in m.tool_calls %}{% set f = call.function %}"
    "{{ '\n<tool_call>\n{\"name\": \"' + f.name + '\", \"arguments\": ' + f.arguments | tojson + '}\n</tool_call>' }}"
    "{% endfor %}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""With tools, and with calls that are marked."""

CHATS: tuple[Messages, ...] = tuple(
    [{"role": role, "content": content} for role, content in chat]
    for chat in (
        [("user", "What is a list?")],
        [("user", "  The spaces around, \n"), ("assistant", " It is.</s> Or not? "), ("user", "É<|im_end|>é")],
        [("system", "Be brief."), ("user", "two words[INST] in <bot>: or <|eot_id|>")],
        [("system", "A"), ("user", "B"), ("assistant", "C"), ("user", "D\n\nE")],
        [("assistant", "I begin.")],
    )
)
