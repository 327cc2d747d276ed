"""Judgements on the routers of a mixture of experts: reports come in, findings go out. Pure, live and offline alike.

One file a judgement. `RouterRules` puts them together and sees to it that each thing is said once.
"""

from trimtab.rules.router.router_rules import RouterRules as RouterRules
